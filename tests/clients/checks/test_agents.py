"""Loops with tools through OpenAI's agents SDK: over Chat Completions, and over Responses, which it uses by itself."""

import asyncio

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.models.openai_provider import OpenAIProvider
from conftest import KEY

set_tracing_disabled(True)
QUESTION = "What is the weather in Madrid?"


def run(server, work, chat=False, **settings):
    """Runs `work` with an agent that has a tool, and the cities that it asks the tool for."""
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the current weather of a city.

        Args:
            city: The city.
        """
        asked.append(city)
        return '{"city": "Madrid", "temperature": 12, "sky": "windy"}'

    async def main():
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client))
        model = OpenAIChatCompletionsModel(model=server.model, openai_client=client) if chat else server.model
        settings_ = ModelSettings(temperature=0, **settings)
        return await work(Agent(name="weather", model=model, model_settings=settings_, tools=[get_weather]), config)

    return asyncio.run(main()), asked


@pytest.mark.parametrize("chat", [False, True])
def test_an_agent_calls_a_tool_and_answers(server, chat):
    async def work(agent, config):
        whole = await Runner.run(agent, QUESTION, max_turns=4, run_config=config)
        streamed = Runner.run_streamed(agent, QUESTION, max_turns=4, run_config=config)
        kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
        return whole, streamed, kinds

    (whole, streamed, kinds), asked = run(server, work, chat)
    assert asked == ["Madrid", "Madrid"]
    assert whole.final_output == streamed.final_output and "12 degrees" in whole.final_output
    assert kinds.count("response.completed") == 2
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    if not chat:
        assert all(response.response_id.startswith("resp_") for response in whole.raw_responses)


def test_an_agent_goes_on_from_stored_responses(server):
    async def work(agent, config):
        first = await Runner.run(agent, QUESTION, max_turns=4, run_config=config, auto_previous_response_id=True)
        second = await Runner.run(
            agent, QUESTION, max_turns=4, run_config=config, previous_response_id=first.last_response_id
        )
        return first, second

    (first, second), asked = run(server, work)
    assert "12 degrees" in first.final_output and set(asked) == {"Madrid"}
    assert second.last_response_id != first.last_response_id


def test_an_agent_without_a_store_carries_its_items(server):
    async def work(agent, config):
        return await Runner.run(agent, QUESTION, max_turns=4, run_config=config)

    made, asked = run(server, work, store=False, response_include=["reasoning.encrypted_content"])
    assert "12 degrees" in made.final_output and asked == ["Madrid"]
