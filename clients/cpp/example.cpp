// Calls a Stepwire server: collects an answer, streams one, cancels one, lets a deadline end one.
//
//   build/example [HOST:PORT] [PROMPT]

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

#include "stepwire/v1/generation_service.grpc.pb.h"

namespace sw = stepwire::v1;

namespace {

// As the server's default: gRPC's own 4 MiB are too few for long prompts and log-probabilities.
constexpr int kMaxMessageBytes = 64 * 1024 * 1024;

// Told each delta as it comes; false cancels the request.
using OnDelta = std::function<bool(const sw::OutputDelta&)>;

std::unique_ptr<sw::GenerationService::Stub> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return sw::GenerationService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

// Runs one generation to its end and returns how it ended. The context carries the deadline.
grpc::Status Stream(sw::GenerationService::Stub& stub, grpc::ClientContext& context,
                    const sw::GenerateRequest& request, const OnDelta& on_delta,
                    sw::FinalOutput* final_output = nullptr) {
  const auto reader = stub.Generate(&context, request);
  sw::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_delta() && !on_delta(response.delta())) context.TryCancel();
    if (response.has_final() && final_output != nullptr) *final_output = response.final();
    // Any other event tells what happens while there is no output, and may be ignored.
  }
  return reader->Finish();
}

void Expect(grpc::StatusCode expected, const grpc::Status& status) {
  if (status.error_code() == expected) return;
  throw std::runtime_error("status " + std::to_string(status.error_code()) + ": " + status.error_message());
}

void ShowGenerate(sw::GenerationService::Stub& stub, const std::string& prompt) {
  sw::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(16);
  grpc::ClientContext context;
  std::string text;
  sw::FinalOutput end;
  const auto append = [&text](const sw::OutputDelta& delta) {
    text += delta.text();
    return true;
  };
  Expect(grpc::StatusCode::OK, Stream(stub, context, request, append, &end));
  std::cout << "generate: " << text << "\n          " << sw::FinishReason_Name(end.finish_reason()) << ", "
            << end.usage().num_output_tokens() << " tokens\n";
}

void ShowStream(sw::GenerationService::Stub& stub, const std::string& prompt) {
  sw::GenerateRequest request;
  sw::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(prompt);
  request.mutable_sampling()->set_seed(7);
  request.mutable_stop()->set_max_tokens(16);
  grpc::ClientContext context;
  const auto print = [](const sw::OutputDelta& delta) {
    std::cout << delta.text() << std::flush;
    return true;
  };
  std::cout << "stream:   ";
  Expect(grpc::StatusCode::OK, Stream(stub, context, request, print));
  std::cout << "\n";
}

// A generation that ends only when it is made to, or with the model's context.
sw::GenerateRequest Endless(const std::string& prompt) {
  sw::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

void ShowCancel(sw::GenerationService::Stub& stub, const std::string& prompt) {
  grpc::ClientContext context;
  const auto leave = [](const sw::OutputDelta&) { return false; };
  Expect(grpc::StatusCode::CANCELLED, Stream(stub, context, Endless(prompt), leave));
  std::cout << "cancel:   left after the first delta\n";
}

void ShowDeadline(sw::GenerationService::Stub& stub, const std::string& prompt) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const auto go_on = [](const sw::OutputDelta&) { return true; };
  Expect(grpc::StatusCode::DEADLINE_EXCEEDED, Stream(stub, context, Endless(prompt), go_on));
  std::cout << "deadline: DEADLINE_EXCEEDED\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1:50051";
  const std::string prompt = argc > 2 ? argv[2] : "The capital of France is";
  try {
    const auto stub = Connect(address);
    ShowGenerate(*stub, prompt);
    ShowStream(*stub, prompt);
    ShowCancel(*stub, prompt);
    ShowDeadline(*stub, prompt);
  } catch (const std::runtime_error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
