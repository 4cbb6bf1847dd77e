"""Loops with tools through litellm, which other agents ask with: over Chat Completions, and over Messages."""

import asyncio
import json
import os

import pytest
from conftest import ANSWER, ARGUMENTS, KEY, MADRID, QUESTION, RESULT, TOLD, WEATHER

# Of its own models.
pytestmark = pytest.mark.filterwarnings("ignore")

# What it would ask the network for is in the package as well.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402

MESSAGES_TOOL = {
    "name": "get_weather",
    "description": WEATHER["function"]["description"],
    "input_schema": WEATHER["function"]["parameters"],
}


def asked(server, messages, **more):
    """An answer over Chat Completions; a stream is put together by litellm itself."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    target = {"model": "openai/" + server.model, "api_base": server.url + "/v1", "api_key": KEY, "num_retries": 0}
    made = litellm.completion(messages=messages, temperature=0, **target, **more)
    return litellm.stream_chunk_builder(list(made), messages=messages) if more.get("stream") else made


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_its_reasoning_and_its_cost(server, stream):
    made = asked(server, QUESTION, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    message, usage = made.choices[0].message, made.usage
    assert message.content == ANSWER and made.choices[0].finish_reason == "stop"
    assert "carbon" in message.reasoning_content
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools_in_a_loop(server, stream):
    messages = [{"role": "user", "content": MADRID}]
    made = asked(server, messages, tools=[WEATHER], stream=stream).choices[0]
    assert made.finish_reason == "tool_calls"
    [call] = made.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    messages += [made.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    told = asked(server, messages, tools=[WEATHER], stream=stream).choices[0]
    assert (told.message.content, told.finish_reason) == (TOLD, "stop")


def test_errors_have_its_classes(server):
    for more, kind in [
        ({"max_tokens": 10**9}, litellm.BadRequestError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
        ({"model": "openai/other"}, litellm.NotFoundError),
    ]:
        target = {"model": "openai/" + server.model, "api_base": server.url + "/v1", "api_key": KEY, "num_retries": 0}
        with pytest.raises(kind):
            litellm.completion(messages=[{"role": "user", "content": QUESTION}], **{**target, **more})


async def by_messages(server, messages):
    """The blocks and the stop reason of an answer over Messages. Its streams need packages of its proxy server, so none is asked for."""
    made = await litellm.anthropic.messages.acreate(
        model="anthropic/" + server.model, api_base=server.url, api_key=KEY, max_tokens=400, temperature=0,
        messages=messages, tools=[MESSAGES_TOOL],
    )
    return made["content"], made["stop_reason"]


def test_tools_in_a_loop_over_messages(server):
    async def loop():
        messages = [{"role": "user", "content": MADRID}]
        blocks, reason = await by_messages(server, messages)
        assert reason == "tool_use"
        call = blocks[-1]
        assert (call["name"], call["input"]) == ("get_weather", ARGUMENTS)
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}
        messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
        return await by_messages(server, messages)

    blocks, reason = asyncio.run(loop())
    assert reason == "end_turn" and blocks[-1]["text"] == TOLD
