package main

import "google.golang.org/grpc"

// connect is that of clients/go for the gRPC that Debian 12 packages: NewClient came later.
func connect(address string) (*grpc.ClientConn, error) {
	return grpc.Dial(address, grpc.WithInsecure())
}
