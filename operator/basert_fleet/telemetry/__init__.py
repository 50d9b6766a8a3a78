"""Every metric and log field, each defined once."""
