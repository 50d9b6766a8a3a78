module basert-fleet/benchmarks/backend

go 1.22
