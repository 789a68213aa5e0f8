// Calls a Stepwire server: collects an answer, streams one, cancels one, lets a deadline end one.
//
//	go run . [HOST:PORT] [PROMPT]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "example.com/stepwire/stepwirepb"
)

//go:generate sh generate.sh

// stream runs one generation and returns how it ended. It stops early, with nil, once onDelta returns
// false; leaving cancels the request. The context carries the deadline.
func stream(
	ctx context.Context,
	client pb.GenerationServiceClient,
	request *pb.GenerateRequest,
	onDelta func(*pb.OutputDelta) bool,
) (*pb.FinalOutput, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := client.Generate(ctx, request)
	if err != nil {
		return nil, err
	}
	var final *pb.FinalOutput
	for {
		response, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return final, nil
		}
		if err != nil {
			return nil, err
		}
		switch event := response.GetEvent().(type) {
		case *pb.GenerateResponse_Delta:
			if !onDelta(event.Delta) {
				return nil, nil
			}
		case *pb.GenerateResponse_Final:
			final = event.Final
		default:
			// Tells what happens while there is no output, and may be ignored.
		}
	}
}

func showGenerate(ctx context.Context, client pb.GenerationServiceClient, prompt string) error {
	request := &pb.GenerateRequest{
		Input:    &pb.GenerateRequest_Text{Text: prompt},
		Sampling: &pb.SamplingParams{Temperature: proto.Float32(0)},
		Stop:     &pb.StopParams{MaxTokens: proto.Uint32(16)},
	}
	var text strings.Builder
	final, err := stream(ctx, client, request, func(delta *pb.OutputDelta) bool {
		text.WriteString(delta.GetText())
		return true
	})
	if err != nil {
		return err
	}
	fmt.Printf("generate: %s\n", text.String())
	fmt.Printf("          %s, %d tokens\n", final.GetFinishReason(), final.GetUsage().GetNumOutputTokens())
	return nil
}

func showStream(ctx context.Context, client pb.GenerationServiceClient, prompt string) error {
	chat := &pb.ChatInput{Messages: []*pb.ChatMessage{{Role: "user", Content: prompt}}}
	request := &pb.GenerateRequest{
		Input:    &pb.GenerateRequest_Chat{Chat: chat},
		Sampling: &pb.SamplingParams{Seed: proto.Uint64(7)},
		Stop:     &pb.StopParams{MaxTokens: proto.Uint32(16)},
	}
	fmt.Print("stream:   ")
	_, err := stream(ctx, client, request, func(delta *pb.OutputDelta) bool {
		fmt.Print(delta.GetText())
		return true
	})
	fmt.Println()
	return err
}

// endless is a generation that ends only when it is made to, or with the model's context.
func endless(prompt string) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Input: &pb.GenerateRequest_Text{Text: prompt},
		Stop:  &pb.StopParams{IgnoreEos: true},
	}
}

func showCancel(ctx context.Context, client pb.GenerationServiceClient, prompt string) error {
	_, err := stream(ctx, client, endless(prompt), func(*pb.OutputDelta) bool { return false })
	if err != nil {
		return err
	}
	fmt.Println("cancel:   left after the first delta")
	return nil
}

func showDeadline(ctx context.Context, client pb.GenerationServiceClient, prompt string) error {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // the server keeps it, too
	defer cancel()
	_, err := stream(ctx, client, endless(prompt), func(*pb.OutputDelta) bool { return true })
	if err != nil && status.Code(err) != codes.DeadlineExceeded {
		return err
	}
	fmt.Println("deadline:", status.Code(err))
	return nil
}

func run(address, prompt string) error {
	connection, err := connect(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewGenerationServiceClient(connection)
	shows := []func(context.Context, pb.GenerationServiceClient, string) error{
		showGenerate, showStream, showCancel, showDeadline,
	}
	for _, show := range shows {
		if err := show(context.Background(), client, prompt); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	address, prompt := "127.0.0.1:50051", "The capital of France is"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if len(os.Args) > 2 {
		prompt = os.Args[2]
	}
	if err := run(address, prompt); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
