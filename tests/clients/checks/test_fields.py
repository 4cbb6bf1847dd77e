"""Every field that the clients' own type definitions have in a request has a row in the server's table of fields, so that none is
taken in silence."""

import re
from pathlib import Path

import pytest
import typing_extensions
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_create
from openai.types import completion_create_params as text
from openai.types.chat import completion_create_params as chat
from openai.types.responses import input_token_count_params, response_create_params

TABLE = Path(__file__).parents[3] / "runtime/server/src/known.rs"
# These travel in headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}

REQUESTS = [
    (chat.CompletionCreateParamsBase, 30),
    (text.CompletionCreateParamsBase, 15),
    (response_create_params.ResponseCreateParamsBase, 25),
    (input_token_count_params.InputTokenCountParams, 10),
    (message_create_params.MessageCreateParamsBase, 15),
    (message_count_tokens_params.MessageCountTokensParams, 5),
    (beta_create.MessageCreateParamsBase, 20),
    (beta_count.MessageCountTokensParams, 10),
]


def rows():
    """Names of the table's rows."""
    source = TABLE.read_text()
    names = set(re.findall(r'(?:applied|idle|refused)\(\s*"([^"]+)"', source))
    for of_all in re.findall(r"const (?:SAMPLED|FORMATS): \[&str; \d+\] = \[(.*?)\];", source, re.DOTALL):
        names |= set(re.findall(r'"([^"]+)"', of_all))
    return names


@pytest.mark.parametrize("request_type, least", REQUESTS, ids=lambda of: getattr(of, "__module__", ""))
def test_every_field_of_a_request_has_a_row(request_type, least):
    fields = set(typing_extensions.get_type_hints(request_type)) - HEADERS
    assert len(fields) >= least
    assert fields - rows() == set()
