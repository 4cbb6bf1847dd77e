"""The Messages API through Anthropic's own client."""

import json

import anthropic
import jsonschema
import pytest
from conftest import ANSWER, ARGUMENTS, KEY, RESULT, TOLD, WEATHER, Element, turned_away
from conftest import MADRID as WEATHER_TEXT
from conftest import QUESTION as TEXT

QUESTION = [{"role": "user", "content": TEXT}]
MADRID = [{"role": "user", "content": WEATHER_TEXT}]
TOOL = {
    "name": "get_weather",
    "description": WEATHER["function"]["description"],
    "input_schema": WEATHER["function"]["parameters"],
}


@pytest.fixture(scope="module")
def claude(server):
    """Anthropic's client. It does not try again, so that every error shows."""
    return anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


def asked(server, temperature=0, **more):
    """A request. The client has no argument for the temperature any more; the protocol has."""
    request = {"model": server.model, "messages": QUESTION, "max_tokens": 400}
    return {**request, "extra_body": {"temperature": temperature}, **more}


def test_models(claude, server):
    [model] = claude.models.list()
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", server.model, server.model, "active")
    assert model.created_at.tzinfo is not None and model.max_input_tokens > 0
    assert claude.models.retrieve(server.model) == model
    page = claude.models.list(limit=1, after_id=model.id)
    assert page.data == [] and page.has_more is False and page.first_id is None
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("other")


def test_a_tool_without_parameters_is_called_with_none(claude, server):
    tool = {"name": "get_time", "description": "The time now.", "input_schema": {"type": "object", "properties": {}}}
    message = claude.messages.create(**asked(server, tools=[tool], tool_choice={"type": "tool", "name": "get_time"}))
    assert [block.input for block in message.content if block.type == "tool_use"] == [{}]


def kinds(message):
    return [block.type for block in message.content]


def prompt_tokens(message):
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_an_answer_has_thinking_text_and_usage(claude, server):
    message = claude.messages.create(**asked(server))
    thinking, text = message.content
    assert (thinking.type, text.type, text.text) == ("thinking", "text", ANSWER)
    assert "carbon" in thinking.thinking and thinking.signature
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens
    assert message._request_id.startswith("req_")


def test_a_stream_says_the_same(claude, server):
    whole = claude.messages.create(**asked(server))
    with claude.messages.stream(**asked(server)) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_message()
    assert events[0] == "message_start" and events[-1] == "message_stop"
    assert events.count("content_block_start") == events.count("content_block_stop") == 2
    assert {"thinking", "signature", "text"} < set(events)
    plain = lambda message: [block.model_dump(exclude={"parsed_output"}) for block in message.content]
    assert (plain(message), message.stop_reason) == (plain(whole), "end_turn")
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert prompt_tokens(message) == prompt_tokens(whole)
    with claude.messages.stream(**asked(server)) as stream:
        assert "".join(stream.text_stream) == ANSWER


def test_raw_events_come_in_order(claude, server):
    events = list(claude.messages.create(**asked(server, messages=MADRID, tools=[TOOL], stream=True)))
    assert [events[0].type, events[-2].type, events[-1].type] == ["message_start", "message_delta", "message_stop"]
    index = -1
    for event in events[1:-2]:
        index += event.type == "content_block_start"
        assert event.index == index
    assert events[-2].delta.stop_reason == "tool_use"
    pieces = [e.delta.partial_json for e in events if e.type == "content_block_delta" and e.delta.type == "input_json_delta"]
    assert len(pieces) > 2 and json.loads("".join(pieces)) == ARGUMENTS


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_tools_in_a_loop(claude, server, streams, display):
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": display}

    def ask(messages):
        request = asked(server, messages=messages, tools=[TOOL], thinking=thinking, max_tokens=1100)
        if not streams:
            return claude.messages.create(**request)
        with claude.messages.stream(**request) as stream:
            return stream.get_final_message()

    first = ask(MADRID)
    assert (kinds(first), first.stop_reason) == (["thinking", "tool_use"], "tool_use")
    thought, call = first.content
    assert bool(thought.thinking) == (display == "summarized") and thought.signature
    assert (call.name, call.input) == ("get_weather", ARGUMENTS)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RESULT}]}
    second = ask([*MADRID, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}])
    assert second.stop_reason == "end_turn"
    assert [block.text for block in second.content if block.type == "text"] == [TOLD]


def test_the_clients_own_tool_runner(claude, server):
    calls = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather of a city.

        Args:
            city: The city.
        """
        calls.append(city)
        return RESULT

    messages = [{"role": "user", "content": "What is the weather in Madrid?"}]
    runner = claude.beta.messages.tool_runner(**asked(server, messages=messages, tools=[get_weather]))
    last = runner.until_done()
    assert calls == ["Madrid"] and "12 degrees" in last.content[-1].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}])
def test_a_call_can_be_demanded(claude, server, choice):
    message = claude.messages.create(**asked(server, tools=[TOOL], tool_choice=choice))
    assert message.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert len(calls) == 1 or choice["type"] == "any"
    for call in calls:
        jsonschema.validate(call.input, TOOL["input_schema"])


def test_no_call_without_tools_shown(claude, server):
    message = claude.messages.create(**asked(server, messages=MADRID, tools=[TOOL], tool_choice={"type": "none"}))
    assert "tool_use" not in kinds(message) and "<|" not in str(message.content)


def test_answers_follow_a_schema(claude, server):
    request = asked(server, max_tokens=1500)
    parsed = claude.messages.parse(**request, output_format=Element)
    assert isinstance(parsed.parsed_output, Element)
    with claude.messages.stream(**request, output_format=Element) as stream:
        assert stream.get_final_message().parsed_output == parsed.parsed_output


def test_the_count_is_the_prompts(claude, server):
    request = {"model": server.model, "messages": MADRID, "system": "Be brief.", "tools": [TOOL]}
    counted = claude.messages.count_tokens(**request)
    message = claude.messages.create(**asked(server, **request, max_tokens=1))
    assert counted.input_tokens == prompt_tokens(message)


def test_stops_and_limits(claude, server):
    stopped = claude.messages.create(**asked(server, stop_sequences=["symbol"]))
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[-1].text) == ("stop_sequence", "symbol", "C is the ")
    # The whole answer has 45 tokens.
    for limit in [*range(1, 13), *range(13, 45, 3)]:
        with claude.messages.stream(**asked(server, messages=MADRID, tools=[TOOL], max_tokens=limit)) as stream:
            message = stream.get_final_message()
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", limit)
        whole = claude.messages.create(**asked(server, messages=MADRID, tools=[TOOL], max_tokens=limit))
        assert kinds(whole) == kinds(message)
        inputs = lambda answer: [block.input for block in answer.content if block.type == "tool_use"]
        assert inputs(whole) == inputs(message)


def test_an_answer_goes_on(claude, client, server):
    begun = [*QUESTION, {"role": "assistant", "content": "C is the symbol"}]
    message = claude.messages.create(**asked(server, messages=begun))
    [block] = message.content
    assert block.type == "text" and block.text.startswith(" of ")
    same = {"continue_final_message": True}
    chat = client.chat.completions.create(model=server.model, messages=begun, temperature=0, extra_body=same)
    assert chat.choices[0].message.content == block.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more, kind, named",
    [
        ({"temperature": 2}, anthropic.BadRequestError, "temperature"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, anthropic.BadRequestError, "prompt is too long"),
        ({"thinking": {"type": "disabled"}}, anthropic.BadRequestError, "thinking"),
        ({"tools": [{"name": "f", "input_schema": {"type": 5}}]}, anthropic.BadRequestError, "input_schema"),
        ({"model": "another"}, anthropic.NotFoundError, "another"),
    ],
)
def test_errors_are_the_clients_own(claude, server, stream, more, kind, named):
    with pytest.raises(kind) as caught:
        claude.messages.create(**asked(server, stream=stream, **more))
    error = caught.value.body
    assert error["type"] == "error" and named in error["error"]["message"]
    assert error["request_id"] == caught.value.request_id


def test_keys(server):
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0).messages.create(**asked(server))
    bearer = anthropic.Anthropic(base_url=server.url, auth_token=KEY, max_retries=0)
    assert bearer.messages.create(**asked(server, max_tokens=1)).usage.output_tokens == 1


def test_a_full_queue_is_an_error_before_any_stream(full):
    server, _ = full
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    turned_away(lambda stream: claude.messages.create(**asked(server, stream=stream)), anthropic.RateLimitError)
