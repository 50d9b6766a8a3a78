"""The commands a person types: what they read, print and exit with. The only room that puts the others together."""
