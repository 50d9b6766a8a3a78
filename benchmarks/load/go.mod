module basert-fleet/benchmarks/load

go 1.22
