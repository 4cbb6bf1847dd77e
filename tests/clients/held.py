"""Hot answers of a served example model, held to grammars, judged by other code than held them.

    python tests/clients/held.py http://127.0.0.1:8000 [OUTPUTS]

`checks/test_held.py` does the same with fewer. Sends OUTPUTS (1000) Chat Completions at temperature 1.5: answer schemas, expressions, a Lark grammar, tools required, named
and free. Complete ones must follow what they were held to, by the `jsonschema` package, by `re`, or by a parser written here;
answers that the token limit cut are counted apart. Exits with 1 if one is wrong.
"""

import json
import re
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jsonschema

MAX_TOKENS = 1000
AT_ONCE = 16


def obj(required=None, **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def integer(low, high):
    return {"type": "integer", "minimum": low, "maximum": high}


NODE = obj(value=integer(-9, 9), next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
SCHEMAS = {
    "nested": obj(
        name={"type": "string", "minLength": 1, "maxLength": 10},
        place=obj(city={"type": "string", "maxLength": 12}, zip={"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}),
        flags=obj(a={"type": "boolean"}),
    ),
    "enums": obj(colour={"enum": ["red", "green", "blue"]}, kind={"const": "paint"}, mixed={"enum": ["auto", 3, None, True]}),
    "arrays": obj(
        points={
            "type": "array",
            "items": {"type": "array", "prefixItems": [integer(0, 99), {"type": "boolean"}], "items": False, "minItems": 2},
            "minItems": 1,
            "maxItems": 3,
        },
        words={"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4},
    ),
    "patterns": obj(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}, day={"type": "string", "format": "date"}),
    "bounds": obj(
        count=integer(1, 12),
        share={"type": "number", "minimum": 0, "maximum": 1},
        below={"type": "integer", "exclusiveMaximum": 0, "minimum": -40},
        over={"type": "number", "exclusiveMinimum": 2.5, "maximum": 7},
    ),
    "whole numbers": obj(
        id={"const": 9007199254740993},
        low=integer(-(2**63), -(2**63) + 5),
        high=integer(2**64 - 6, 2**64 - 1),
        some={"type": "array", "items": {"enum": [2**63 - 1, "none"]}, "maxItems": 2},
    ),
    "reference": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "any of": {
        "anyOf": [
            obj(ok={"const": True}),
            obj(error={"type": "string", "maxLength": 8}, code=integer(400, 599)),
            {"type": "array", "items": integer(0, 3), "maxItems": 3},
        ]
    },
    "optional": obj(["b"], a=integer(0, 5), b={"type": ["string", "null"], "maxLength": 4}, c={"type": "boolean"}),
}
EXPRESSIONS = [r"[a-f0-9]{4}(:[a-f0-9]{4}){2}", r"(yes|no), (because|although) [a-z ]{5,30}\.", r"[0-9]{3}-[0-9]{4}|[a-z]{2,9}"]
LARK = 'start: term (("+" | "-") term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/'
ARGUMENTS = {
    "get_weather": obj(["city"], city={"type": "string", "maxLength": 12}, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    "set": {
        **obj(
            ["level", "on"],
            level=integer(0, 100),
            on={"type": "boolean"},
            code={"type": "string", "pattern": "^[A-Z]{2}$"},
            points={"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
        ),
        "$defs": {"point": obj(x=integer(0, 9))},
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema, "strict": name != "now"}}
    for name, schema in ARGUMENTS.items()
]


def valid(schema, document):
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(document)


def valid_text(schema, text):
    """A document of the schema, with no more white space between its parts than a line's end and some indentation."""
    valid(schema, json.loads(text))
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    check(not re.search(r"\s{19}", outside), "white space: " + repr(text))


def is_sum(text):
    """Numbers of one to three digits, added and subtracted, in brackets."""

    def total(at):
        at = term(at)
        while at is not None and text[at : at + 1] in ("+", "-"):
            at = term(at + 1)
        return at

    def term(at):
        if text[at : at + 1] == "(":
            end = total(at + 1)
            return end + 1 if end is not None and text[end : end + 1] == ")" else None
        number = re.compile("[0-9]{1,3}").match(text, at)
        return number.end() if number else None

    return total(0) == len(text)


def check(condition, what):
    if not condition:
        raise ValueError(what)


def tools_case(choice, parallel, fewest, most, schema=None):
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
    if schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}

    def judge(message):
        calls = message.get("tool_calls") or []
        check(fewest <= len(calls) <= most, f"{len(calls)} calls")
        for call in calls:
            name = call["function"]["name"]
            check(isinstance(choice, str) or name == choice["function"]["name"], f"calls {name}")
            valid(ARGUMENTS[name], json.loads(call["function"]["arguments"]))
        if schema and not calls:
            valid(schema, json.loads(message["content"]))

    return body, judge


def cases():
    def answer(field, judge):
        return field, lambda message: judge(message["content"] or "")

    for name, schema in SCHEMAS.items():
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        yield f"schema, {name}", *answer({"response_format": form}, lambda text, s=schema: valid_text(s, text))
    for regex in EXPRESSIONS:
        judge = lambda text, r=regex: check(re.fullmatch(r, text), text)  # noqa: E731
        yield f"expression {regex}", *answer({"guided_regex": regex}, judge)
    yield "Lark, sums", *answer({"guided_grammar": LARK}, lambda text: check(is_sum(text), text))
    yield "tools required, one", *tools_case("required", False, 1, 1)
    yield "tools required, parallel", *tools_case("required", True, 1, 99)
    yield "tool named", *tools_case({"type": "function", "function": {"name": "set"}}, True, 1, 1)
    yield "tools auto", *tools_case("auto", True, 0, 99)
    yield "tools and answer schema", *tools_case("auto", True, 0, 99, obj(n=integer(0, 5)))


def run(url, key, n, case):
    name, body, judge = case
    user = "What is the weather in Paris and in Rome? Set the level to 7." if "tools" in body else "Say something."
    body = {**body, "messages": [{"role": "user", "content": user}], "temperature": 1.5, "seed": n, "max_tokens": MAX_TOKENS}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request) as response:
            choice = json.load(response)["choices"][0]
    except urllib.error.HTTPError as error:
        return name, "wrong", f"{error.code} {error.read().decode()}"
    if choice["finish_reason"] == "length":
        return name, "cut", ""
    try:
        judge(choice["message"])
        return name, "complete", ""
    except (ValueError, KeyError, jsonschema.ValidationError) as error:
        return name, "wrong", f"{error}: {json.dumps(choice)}"


def held(url, outputs, key="none"):
    """Draws outputs: how many of each case and end there are, and what is wrong with the wrong ones."""
    all_cases = list(cases())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda n: run(url, key, n, all_cases[n % len(all_cases)]), range(outputs)))
    counts = Counter((name, how) for name, how, _ in done)
    return counts, [f"{name}: {problem}" for name, how, problem in done if how == "wrong"]


def main():
    outputs = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    counts, wrong = held(sys.argv[1].rstrip("/"), outputs)
    total = Counter()
    for name in dict.fromkeys(name for name, _ in counts):
        print(f"{name:<50}", "  ".join(f"{counts[name, how]:>4} {how}" for how in ("complete", "cut", "wrong")))
        total.update({how: counts[name, how] for how in ("complete", "cut", "wrong")})
    print(f"{outputs} outputs:", ", ".join(f"{total[how]} {how}" for how in ("complete", "cut", "wrong")))
    print("\n".join(wrong[:20]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
