module example.com/puller

go 1.22

require example.com/receiver v0.0.0

replace example.com/receiver => ../go
