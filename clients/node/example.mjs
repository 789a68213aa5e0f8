// Calls a Stepwire server: collects an answer, streams one, cancels one, lets a deadline end one.
//
//   node example.mjs [HOST:PORT] [PROMPT]

import { fileURLToPath } from "node:url";
import { credentials, loadPackageDefinition, Metadata, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROTOS = fileURLToPath(new URL("../../protos", import.meta.url));
// As the server's default: gRPC's own 4 MiB are too few for long prompts and log-probabilities.
const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;
// A generation that ends only when it is made to, or with the model's context.
const ENDLESS = { ignoreEos: true };

/** Returns a client of the server at host:port; the first call connects. */
function connect(address) {
  const definition = loadSync("stepwire/v1/generation_service.proto", {
    includeDirs: [PROTOS],
    defaults: true, // an empty list instead of undefined
    enums: String, // names instead of numbers
    longs: String, // a seed has 64 bits, a number 53
    oneofs: true, // message.event names the field that is set
  });
  const { GenerationService } = loadPackageDefinition(definition).stepwire.v1;
  return new GenerationService(address, credentials.createInsecure(), {
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
  });
}

/** Yields the messages of one generation as they come. Leaving the loop early cancels the request. */
async function* stream(client, request, options = {}) {
  const call = client.generate(request, new Metadata(), options);
  // The loop below gets errors, too; this takes the CANCELLED that comes when nobody iterates any more.
  call.on("error", () => {});
  try {
    yield* call;
  } finally {
    call.cancel(); // of a call that has ended, this does nothing
  }
}

/** Returns the text and the final message of one generation, once it has ended. */
async function generate(client, request, options = {}) {
  let text = "";
  let final;
  for await (const message of stream(client, request, options)) {
    if (message.event === "delta") text += message.delta.text;
    if (message.event === "final") final = message.final;
    // Any other event tells what happens while there is no output, and may be ignored.
  }
  return { text, final };
}

async function showGenerate(client, prompt) {
  const request = { text: prompt, sampling: { temperature: 0 }, stop: { maxTokens: 16 } };
  const { text, final } = await generate(client, request);
  console.log(`generate: ${text}`);
  console.log(`          ${final.finishReason}, ${final.usage.numOutputTokens} tokens`);
}

async function showStream(client, prompt) {
  const chat = { messages: [{ role: "user", content: prompt }] };
  process.stdout.write("stream:   ");
  for await (const message of stream(client, { chat, sampling: { seed: "7" }, stop: { maxTokens: 16 } })) {
    if (message.event === "delta") process.stdout.write(message.delta.text);
  }
  process.stdout.write("\n");
}

async function showCancel(client, prompt) {
  for await (const message of stream(client, { text: prompt, stop: ENDLESS })) {
    if (message.event === "delta") break; // one delta is enough; the server frees the rest
  }
  console.log("cancel:   left after the first delta");
}

async function showDeadline(client, prompt) {
  const options = { deadline: Date.now() + 100 }; // milliseconds; the server keeps it, too
  try {
    await generate(client, { text: prompt, stop: ENDLESS }, options);
    console.log("deadline: the model's context was full before");
  } catch (error) {
    if (error.code !== status.DEADLINE_EXCEEDED) throw error;
    console.log(`deadline: ${status[error.code]}`);
  }
}

const [address = "127.0.0.1:50051", prompt = "The capital of France is"] = process.argv.slice(2);
const client = connect(address);
try {
  for (const show of [showGenerate, showStream, showCancel, showDeadline]) await show(client, prompt);
} catch (error) {
  console.error(`${status[error.code] ?? error.name}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
