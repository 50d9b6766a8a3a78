"""The data plane: the clients' API, keys, queues, the agents' sessions and the ops API."""
