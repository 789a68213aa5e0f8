package main

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// As the server's default: gRPC's own 4 MiB are too few for long prompts and log-probabilities.
const maxMessageBytes = 64 * 1024 * 1024

// connect returns a connection to the server at host:port, which the first call makes.
func connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(
		address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxMessageBytes),
			grpc.MaxCallSendMsgSize(maxMessageBytes),
		),
	)
}
