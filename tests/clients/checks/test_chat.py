"""Chat Completions through OpenAI's own client."""

import json
import urllib.request

import jsonschema
import openai
import pytest
from conftest import ANSWER, ARGUMENTS, KEY, MADRID, RESULT, TOLD, WEATHER, Element, turned_away
from conftest import QUESTION as TEXT

QUESTION = [{"role": "user", "content": TEXT}]


def ask(client, server, **more):
    return client.chat.completions.create(**{"model": server.model, "messages": QUESTION, "temperature": 0, **more})


def test_an_answer_has_reasoning_content_and_usage(client, server):
    answer = ask(client, server)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert "carbon" in choice.message.reasoning_content
    assert choice.message.tool_calls is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


def test_a_stream_says_the_same(client, server):
    whole = ask(client, server)
    content, reasoning, usage, finish = "", "", None, None
    for chunk in ask(client, server, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    assert (content, finish) == (ANSWER, "stop")
    assert reasoning == whole.choices[0].message.reasoning_content
    assert usage == whole.usage


def test_tools_in_a_loop(client, server):
    messages = [{"role": "user", "content": MADRID}]
    first = ask(client, server, messages=messages, tools=[WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == ARGUMENTS
    messages.append(first.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    second = ask(client, server, messages=messages, tools=[WEATHER]).choices[0]
    assert (second.message.content, second.finish_reason) == (TOLD, "stop")


def test_streamed_calls_join_to_the_whole_ones(client, server):
    messages = [{"role": "user", "content": MADRID}]
    arguments, names, deltas = "", [], 0
    for chunk in ask(client, server, messages=messages, tools=[WEATHER], stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                names += [call.function.name] if call.id else []
                arguments += call.function.arguments
                deltas += 1
    assert names == ["get_weather"] and deltas > 2
    assert json.loads(arguments) == ARGUMENTS


def test_a_call_that_is_cut_is_told_in_both_forms(client, server):
    asked = {"messages": [{"role": "user", "content": MADRID}], "tools": [WEATHER]}
    longest = 0
    for limit in range(15, 60, 5):
        [choice] = ask(client, server, **asked, max_tokens=limit).choices
        calls = {}
        for chunk in ask(client, server, **asked, max_tokens=limit, stream=True):
            for part in (call for one in chunk.choices for call in one.delta.tool_calls or []):
                name, arguments = calls.get(part.index, ("", ""))
                calls[part.index] = (name + (part.function.name or ""), arguments + part.function.arguments)
        whole = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        assert whole == list(calls.values()), limit
        longest = max([longest, *(len(arguments) for _, arguments in whole if choice.finish_reason == "length")])
    assert longest > 5


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_can_be_demanded(client, server, choice):
    made = ask(client, server, tools=[WEATHER], tool_choice=choice, max_tokens=400).choices[0]
    assert made.finish_reason == "tool_calls" and not made.message.content
    for call in made.message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])


def test_no_call_without_tools_shown(client, server):
    messages = [{"role": "user", "content": MADRID}]
    made = ask(client, server, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=200).choices[0]
    assert made.message.tool_calls is None and "<|" not in (made.message.content or "")


SCHEMA = {
    "type": "object",
    "properties": {"element": {"type": "string", "maxLength": 20}, "symbol": {"enum": ["C", "H", "O"]}},
    "required": ["element", "symbol"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answers_follow_a_schema(client, server, temperature):
    form = {"type": "json_schema", "json_schema": {"name": "element", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        made = ask(client, server, response_format=form, temperature=temperature, seed=seed, max_tokens=1500).choices[0]
        assert made.finish_reason == "stop"
        jsonschema.validate(json.loads(made.message.content), SCHEMA)


def test_json_objects(client, server):
    form = {"response_format": {"type": "json_object"}, "temperature": 1, "max_tokens": 1500}
    made = [ask(client, server, seed=seed, **form).choices[0] for seed in range(4)]
    complete = [choice for choice in made if choice.finish_reason == "stop"]
    assert complete, "every answer was cut"
    assert all(isinstance(json.loads(choice.message.content), dict) for choice in complete)


def test_logprobs_are_aligned_with_tokens(client, server):
    answer = ask(client, server, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert answer.choices[0].message.content in text
    # A grammar may admit fewer tokens than are asked for.
    assert all(1 <= len(entry.top_logprobs) <= 3 for entry in entries)
    assert all(entry.top_logprobs[0].token == entry.token for entry in entries)


def test_several_choices(client, server):
    drawn = {"n": 3, "temperature": 2, "top_p": 1, "seed": 1, "max_tokens": 60}
    answer = ask(client, server, **drawn)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    again = ask(client, server, **drawn)
    said = lambda a: [(c.message.content, c.message.reasoning_content) for c in a.choices]
    assert said(answer) == said(again) and len(set(said(answer))) > 1


def test_a_grammar_that_nothing_satisfies_is_the_requests_error(client, server):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    for more, param in [({"response_format": form}, "response_format"), ({"extra_body": {"ebnf": 'root ::= "a" root'}}, "ebnf")]:
        for stream in [False, True]:
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, server, stream=stream, **more)
            assert (caught.value.code, caught.value.param) == ("invalid_grammar", param)


def test_stop_strings_and_limits(client, server):
    stopped = ask(client, server, stop=["symbol"]).choices[0]
    assert stopped.finish_reason == "stop" and stopped.message.content == "C is the "
    assert ask(client, server, max_tokens=3).choices[0].finish_reason == "length"


def test_parsed_answers_of_the_client(client, server):
    made = client.chat.completions.parse(
        model=server.model, messages=QUESTION, response_format=Element, temperature=0, max_tokens=1500
    )
    assert isinstance(made.choices[0].message.parsed, Element)


def test_the_streaming_helper_of_the_client(client, server):
    with client.chat.completions.stream(model=server.model, messages=QUESTION, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds
    assert final.choices[0].message.content == ANSWER


def test_completions(client, server):
    made = client.completions.create(model=server.model, prompt="import os", max_tokens=4, temperature=0, logprobs=2, echo=True)
    choice = made.choices[0]
    assert choice.text.startswith("import os") and choice.finish_reason == "length"
    columns = choice.logprobs
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.text_offset) == made.usage.total_tokens
    assert columns.token_logprobs[0] is None and "".join(columns.tokens) == choice.text
    pieces = client.completions.create(model=server.model, prompt="import os", max_tokens=4, temperature=0, stream=True)
    assert "import os" + "".join(c.choices[0].text for c in pieces if c.choices) == choice.text


def test_models(client, server):
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model


@pytest.mark.parametrize("more", [{}, {"parameters": None}, {"strict": True}])
def test_a_tool_without_parameters_is_called_with_none(client, server, more):
    tool = {"type": "function", "function": {"name": "get_time", "description": "The time now.", **more}}
    ask = {"model": server.model, "messages": [{"role": "user", "content": "What time is it?"}], "temperature": 0}
    ask |= {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "get_time"}}}
    whole = client.chat.completions.create(**ask).choices[0].message
    assert [call.function.arguments for call in whole.tool_calls] == ["{}"] and whole.content is None
    # What the client puts together from a stream is the same message.
    with client.chat.completions.stream(**ask) as stream:
        stream.until_done()
        streamed = stream.get_final_completion().choices[0].message
    assert [call.function.arguments for call in streamed.tool_calls] == ["{}"] and not streamed.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more, kind, param",
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, openai.BadRequestError, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]}, openai.BadRequestError, "tools[0].function.parameters"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": 5}}}}, openai.BadRequestError, "response_format.json_schema.schema"),
        ({"model": "another"}, openai.NotFoundError, "model"),
    ],
)
def test_errors_are_the_clients_own(client, server, stream, more, kind, param):
    with pytest.raises(kind) as caught:
        ask(client, server, stream=stream, **more)
    assert caught.value.param == param and caught.value.type and caught.value.code


def test_keys(server):
    for key in ["wrong", KEY + "x"]:
        other = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            other.models.list()


def test_a_full_queue_is_an_error_before_any_stream(full):
    server, client = full
    turned_away(lambda stream: ask(client, server, stream=stream), openai.RateLimitError)
    texts = lambda stream: client.completions.create(model=server.model, prompt=["a", "b"], max_tokens=1, stream=stream)
    turned_away(texts, openai.RateLimitError)


def test_a_server_that_stops_ends_its_streams(serve):
    server = serve("--grace-seconds", "0")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = client.completions.create(
        model=server.model, prompt="import os", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    first = next(iter(stream))
    assert first.choices
    server.process.terminate()
    reasons = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
    assert reasons[-1] in ("abort", "length")


def fetch(server, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers)) as answer:
        return answer.read().decode()


def test_operators_routes(server):
    post = lambda path, body: json.loads(fetch(server, path, body))
    assert json.loads(fetch(server, "/health")) == {"status": "ok"}
    assert "beam_run_generation_tokens_total" in fetch(server, "/metrics")
    assert post("/flush_cache", {})["success"]
    assert post("/abort_request", {"rid": "nobody"}) == {"aborted": 0}
    ids = post("/tokenize", {"prompt": "import os"})["tokens"]
    assert post("/detokenize", {"tokens": ids}) == {"text": "import os"}
    made = post("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}})
    assert made["meta_info"]["completion_tokens"] == 2 and len(made["output_ids"]) == 2
