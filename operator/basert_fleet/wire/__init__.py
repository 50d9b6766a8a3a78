"""What agents and gateways say to each other, and the links that carry it."""
