"""Servers and clients that the checks share."""

import json
import os
import subprocess

import openai
import pytest

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
