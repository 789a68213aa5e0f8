#!/bin/sh
# Writes stepwirepb/ from the protos; `go generate` runs it. Needs protoc, protoc-gen-go and protoc-gen-go-grpc.
set -eu
cd "$(dirname "$0")"
package=example.com/stepwire/stepwirepb
mapping="Mstepwire/v1/types.proto=$package,Mstepwire/v1/generation_service.proto=$package"
protoc --proto_path=../../protos \
  --go_out=. --go_opt="module=example.com/stepwire,$mapping" \
  --go-grpc_out=. --go-grpc_opt="module=example.com/stepwire,$mapping" \
  stepwire/v1/types.proto stepwire/v1/generation_service.proto
