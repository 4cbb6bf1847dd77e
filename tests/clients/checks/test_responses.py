"""Responses through OpenAI's own client."""

import json
import re

import jsonschema
import openai
import pytest
from conftest import ANSWER, ARGUMENTS, KEY, QUESTION, RESULT, TOLD, WEATHER, Element, turned_away
from conftest import MADRID as ASKED

TOOL = {"type": "function", **WEATHER["function"]}


def ask(client, server, **more):
    return client.responses.create(**{"model": server.model, "input": QUESTION, "temperature": 0, **more})


def calls(response):
    return [item for item in response.output if item.type == "function_call"]


def test_an_answer_has_reasoning_text_and_usage(client, server):
    answer = ask(client, server, metadata={"k": "v"})
    assert (answer.output_text, answer.status) == (ANSWER, "completed")
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert "carbon" in answer.output[0].content[0].text
    assert answer.output[1].phase == "final_answer"
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert answer.metadata == {"k": "v"} and answer.error is None


def check_events(events):
    """The rules of a stream: numbers without gaps, and a `done` for every `added`."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    items, parts = {}, {}
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(items) and all(items.values())
            items[event.output_index] = None
        elif event.type == "response.output_item.done":
            assert items[event.output_index] is None
            items[event.output_index] = event.item
        elif event.type.endswith("_part.added"):
            assert event.item_id not in parts
            parts[event.item_id] = False
        elif event.type.endswith("_part.done"):
            assert parts[event.item_id] is False
            parts[event.item_id] = True
    assert all(items.values()) and all(parts.values())
    response = events[-1].response
    assert events[-1].type == f"response.{response.status}"
    assert [item.to_dict() for item in items.values()] == [item.to_dict() for item in response.output]
    return response


def without_names(response):
    def plain(item):
        return {key: value for key, value in item.to_dict().items() if key not in ("id", "call_id")}

    return [plain(item) for item in response.output]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"reasoning": {"summary": "auto"}},
        {"max_output_tokens": 5},
        {"max_output_tokens": 25},
        {"input": ASKED, "tools": [TOOL]},
        {"input": ASKED, "tools": [TOOL], "max_output_tokens": 40},
        {"top_logprobs": 2},
    ],
)
def test_a_stream_says_the_same(client, server, more):
    whole = ask(client, server, **more)
    final = check_events(list(ask(client, server, stream=True, **more)))
    assert without_names(final) == without_names(whole)
    assert (final.status, final.usage.output_tokens) == (whole.status, whole.usage.output_tokens)


def test_the_streaming_helper_of_the_client(client, server):
    with client.responses.stream(model=server.model, input=QUESTION, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == ANSWER
    with client.responses.stream(model=server.model, input=ASKED, tools=[TOOL], temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    [call] = calls(final)
    assert len(pieces) > 2 and json.loads("".join(pieces)) == json.loads(call.arguments) == ARGUMENTS


def test_tools_in_a_loop_by_name(client, server):
    first = ask(client, server, input=ASKED, tools=[TOOL])
    [call] = calls(first)
    assert call.name == "get_weather" and json.loads(call.arguments) == ARGUMENTS
    output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = ask(client, server, input=[output], tools=[TOOL], previous_response_id=first.id)
    assert second.output_text == TOLD and second.previous_response_id == first.id


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_tools_in_a_loop_by_items(client, server, include):
    items = [{"role": "user", "content": ASKED}]
    first = ask(client, server, input=items, tools=[TOOL], store=False, include=include)
    items += [item.to_dict() for item in first.output]
    if include:
        # Without a store the sealed reasoning alone is brought back.
        for item in items:
            item.pop("content") if item.get("type") == "reasoning" else None
    [call] = calls(first)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
    assert ask(client, server, input=items, tools=[TOOL], store=False).output_text == TOLD


def test_both_ways_cost_the_same(client, server):
    first = ask(client, server)
    items = [{"role": "user", "content": QUESTION}, *[item.to_dict() for item in first.output]]
    more = {"role": "user", "content": "And H?"}
    by_items = ask(client, server, input=[*items, more], max_output_tokens=20)
    by_name = ask(client, server, input=[more], previous_response_id=first.id, max_output_tokens=20)
    assert by_items.usage.input_tokens == by_name.usage.input_tokens
    assert by_items.output_text == by_name.output_text
    count = client.responses.input_tokens.count(model=server.model, input=[*items, more])
    assert count.input_tokens == by_items.usage.input_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_can_be_demanded(client, server, choice):
    made = ask(client, server, tools=[TOOL], tool_choice=choice, max_output_tokens=400)
    assert calls(made) and not made.output_text
    for call in calls(made):
        jsonschema.validate(json.loads(call.arguments), TOOL["parameters"])


def test_the_shell_and_custom_tools(client, server):
    def complete(kind, **more):
        """The calls of complete answers, of which there must be some."""
        drawn = {"temperature": 1, "max_output_tokens": 1200, **more}
        made = [ask(client, server, extra_body={"seed": seed}, **drawn) for seed in range(4)]
        calls = [[item for item in one.output if item.type == kind] for one in made if one.status == "completed"]
        assert calls, f"every {kind} was cut"
        assert all(len(one) == 1 for one in calls)
        return [one[0] for one in calls]

    shell = {"type": "shell", "environment": {"type": "local"}}
    for call in complete("shell_call", tools=[shell], tool_choice={"type": "shell"}):
        assert len(call.action.commands) == 1 and call.action.timeout_ms == 600000
    form = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}-[0-9]"}
    code = {"type": "custom", "name": "code", "description": "A code.", "format": form}
    for call in complete("custom_tool_call", tools=[code], tool_choice={"type": "custom", "name": "code"}):
        assert re.fullmatch(form["definition"], call.input)


def test_parsed_answers_of_the_client(client, server):
    made = client.responses.parse(
        model=server.model, input=QUESTION, text_format=Element, temperature=0, max_output_tokens=1500
    )
    assert isinstance(made.output_parsed, Element)


def test_logprobs_spell_the_text(client, server):
    answer = ask(client, server, top_logprobs=3, include=["message.output_text.logprobs"])
    entries = answer.output[1].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == ANSWER
    assert all(1 <= len(entry.top_logprobs) <= 3 for entry in entries)


def test_stored_responses(client, server):
    answer = ask(client, server)
    assert client.responses.retrieve(answer.id).to_dict() == answer.to_dict()
    items = list(client.responses.input_items.list(answer.id))
    assert [item.content[0].text for item in items] == [QUESTION]
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    kept = ask(client, server, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


def test_background_and_cancelling(client, server):
    made = ask(client, server, background=True)
    while made.status == "in_progress":
        made = client.responses.retrieve(made.id)
    assert (made.status, made.output_text) == ("completed", ANSWER)
    long = ask(client, server, background=True, temperature=2, max_output_tokens=1500)
    try:
        assert client.responses.cancel(long.id).status == "cancelled"
    except openai.BadRequestError as error:
        # It was over before.
        assert error.code == "response_finished"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more, kind, param",
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": "word " * 5000}, openai.BadRequestError, "input"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}}, openai.BadRequestError, "text.format.schema"),
        ({"model": "another"}, openai.NotFoundError, "model"),
        ({"previous_response_id": "resp_none"}, openai.NotFoundError, "previous_response_id"),
    ],
)
def test_errors_are_the_clients_own(client, server, stream, more, kind, param):
    with pytest.raises(kind) as caught:
        ask(client, server, stream=stream, **more)
    assert caught.value.param == param and caught.value.type and caught.value.code


def test_a_full_queue_is_an_error_before_any_stream(full):
    server, client = full
    turned_away(lambda stream: ask(client, server, stream=stream), openai.RateLimitError)


def test_a_server_without_a_store(serve):
    server = serve("--stored-responses", "0")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    assert ask(client, server).store is False
    with pytest.raises(openai.BadRequestError):
        ask(client, server, background=True)


def test_a_stopping_server_ends_its_streams(serve):
    server = serve("--grace-seconds", "0")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = ask(client, server, stream=True, temperature=2, max_output_tokens=1900, extra_body={"ignore_eos": True})
    events = [next(stream)]
    server.process.terminate()
    events += list(stream)
    assert check_events(events).status in ("failed", "incomplete", "completed")


def test_other_keys_see_nothing(server):
    other = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY + "x", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        other.responses.retrieve("resp_1")
