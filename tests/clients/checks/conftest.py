"""Servers and clients that the checks share."""

import json
import os
import subprocess

import openai
import pytest
from pydantic import BaseModel

KEY = "a-key-for-checks"


class Server:
    """A running `beam-run serve` on a free port."""

    def __init__(self, *flags):
        command = [os.environ["BEAM_RUN"], "serve", os.environ["BEAM_ARTIFACT"], "--model", os.environ["BEAM_MODEL"]]
        self.process = subprocess.Popen([*command, "--port", "0", "--json", *flags], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line, "the server ended before it was ready"
        ready = json.loads(line)
        self.url, self.model = ready["url"], ready["model"]

    def stop(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="session")
def server():
    """The server that most checks use: with a key, all else as it comes."""
    server = Server("--api-key", KEY)
    yield server
    server.stop()


@pytest.fixture
def serve():
    """Starts servers with flags of their own."""
    servers = []

    def start(*flags):
        servers.append(Server(*flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def full(serve):
    """A server that has no room: one request runs and one waits, as each has more to do than others take to arrive."""
    server = serve("--max-queued-requests", "1", "--max-running", "1")
    texts = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    long = {"prompt": "import os", "max_tokens": 1500, "stream": True, "extra_body": {"ignore_eos": True}}
    streams = [texts.completions.create(model=server.model, **long) for _ in range(2)]
    yield server, texts
    for stream in streams:
        stream.close()


def turned_away(ask, kind):
    """`ask(stream)` is refused in both forms, before any stream, with a time to try again."""
    for stream in [False, True]:
        with pytest.raises(kind) as caught:
            ask(stream)
        assert caught.value.status_code == 429 and int(caught.value.response.headers["retry-after"]) >= 1
        error = caught.value.body
        assert error.get("error", error)["type"] == "rate_limit_error"


@pytest.fixture(scope="session")
def client(server):
    """OpenAI's client. It does not try again, so that every error shows."""
    return openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city."},
                "unit": {"type": "string", "description": "The unit.", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}

QUESTION = "What element is C?"
ANSWER = "C is the symbol of carbon."
MADRID = "What is the weather in Madrid? Use celsius."
ARGUMENTS = {"city": "Madrid", "unit": "celsius"}
RESULT = json.dumps({"city": "Madrid", "temperature": 12, "sky": "windy"})
TOLD = "It is 12 degrees and windy in Madrid."


class Element(BaseModel):
    """What answers are parsed into."""

    element: str
    atoms: int
