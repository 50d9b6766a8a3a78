"""The benchmark: gateway and agents beside HAProxy, on the same engines and cores, in one run (`make bench`)."""
