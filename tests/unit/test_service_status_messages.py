"""How long a status's message may be."""

from service.status_messages import MAX_MESSAGE_CHARACTERS, shortened


def test_a_message_that_is_too_long_keeps_its_ends() -> None:
    fitting = "a" + "x" * (MAX_MESSAGE_CHARACTERS - 2) + "z"
    assert shortened(fitting) == fitting
    assert shortened("a" + "x" * 499 + "z") == "a" + "x" * 249 + " ... " + "x" * 249 + "z"
