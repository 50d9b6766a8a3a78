"""What basert-serve is: how it is started, asked, cancelled, probed and read. Nothing here decides about a slot."""
