"""How much a message may hold at all, before any of it is read, and what a chat counts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from stepwire.v1 import generation_service_pb2 as pb

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend import convert, vllm_convert
from scheduler_svc.frontend.prompt_check import num_chat_bytes
from scheduler_svc.frontend.request_check import RequestLimits, check_counts
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.values import AskedCounts, ChatInput
from tests.rpc.frontend_bench import write_model_folder

LIMITS = RequestLimits(
    vocab_size=100, eos_token_ids=(), max_model_len=64, max_pool_tokens=48, max_prompt_bytes=640
)


@pytest.mark.parametrize(
    ("field", "most", "message"),
    [
        ("num_messages", 10,
         "number of entries in chat.messages is 11, but must be at most 10: "
         "each counts as 64 bytes of max_prompt_bytes"),
        ("num_prompt_tokens", 47,
         "number of tokens in token_ids is 48, but must be at most 47: "
         "prompt and output share the KV cache, 48 tokens"),
        ("num_resumed_tokens", 47, "number of entries in resume.token_ids is 48, but must be at most 47"),
        ("num_biases", 1024, "number of entries in sampling.logit_bias is 1025, but must be at most 1024"),
        ("num_stop_strings", 16, "number of entries in stop.stop_strings is 17, but must be at most 16"),
        ("num_stop_token_ids", 64, "number of entries in stop.stop_token_ids is 65, but must be at most 64"),
    ],
)  # fmt: skip
def test_one_entry_too_many_is_refused(field: str, most: int, message: str) -> None:
    fitting: dict[str, Any] = {field: most}
    check_counts(AskedCounts(**fitting), LIMITS)
    with pytest.raises(InvalidRequestError) as caught:
        check_counts(AskedCounts(**{field: most + 1}), LIMITS)
    assert str(caught.value) == message


def test_entries_are_counted_in_each_contract() -> None:
    message = pb.GenerateRequest(resume=pb.Resume(token_ids=[1] * 2))
    message.chat.messages.add(role="u")
    message.sampling.logit_bias[3] = 1
    message.stop.stop_strings.extend("abc")
    message.stop.stop_token_ids.extend([1] * 4)
    assert convert.count_entries(message) == AskedCounts(
        num_messages=1, num_resumed_tokens=2, num_biases=1, num_stop_strings=3, num_stop_token_ids=4
    )
    message.token_ids.ids.extend([1] * 5)
    assert convert.count_entries(message).num_prompt_tokens == 5

    theirs = vllm_pb2.GenerateRequest(tokenized={"input_ids": [1] * 5})
    theirs.sampling_params.logit_bias[3] = 1
    theirs.sampling_params.stop.extend("abc")
    theirs.sampling_params.stop_token_ids.extend([1] * 4)
    assert vllm_convert.count_entries(theirs) == AskedCounts(
        num_prompt_tokens=5, num_biases=1, num_stop_strings=3, num_stop_token_ids=4
    )


def test_each_message_and_each_value_of_a_chat_s_arguments_counts() -> None:
    assert num_chat_bytes(ChatInput(messages=(("u", ""),) * 3)) == 3 * (64 + 1)
    assert num_chat_bytes(ChatInput(messages=(("u", "é"),))) == 64 + 3
    arguments = '{"tools": [{"a": 1, "b": 2}]}'
    chat = ChatInput(messages=(("u", ""),), template_arguments_json=arguments)
    assert num_chat_bytes(chat) == 65 + len(arguments) + 4 * 64


class OnlyPieces(Sequence[int]):
    """Token ids that are never to be read all at once."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        self.longest = 0

    def __len__(self) -> int:
        return len(self._token_ids)

    def __getitem__(self, piece: Any) -> Any:
        assert isinstance(piece, slice)
        found = self._token_ids[piece]
        self.longest = max(self.longest, len(found))
        return found


async def test_many_ids_become_text_piece_by_piece(tmp_path: Path) -> None:
    model = ServedModel.load(SchedulerConfig(model=str(write_model_folder(tmp_path))))
    # A character of two tokens lies across the border of two pieces.
    token_ids = OnlyPieces([65, *"é".encode() * 10_000])
    assert await model.detokenize(token_ids, skips_special_tokens=True) == "A" + "é" * 10_000
    assert token_ids.longest < len(token_ids)
    with pytest.raises(InvalidRequestError, match=r"^token_ids\[20000\] is 260, but must be in"):
        await model.detokenize(OnlyPieces([65] * 20_000 + [260]), skips_special_tokens=True)
