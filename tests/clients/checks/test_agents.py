"""A loop with tools through OpenAI's agents SDK, over Chat Completions."""

import asyncio

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from conftest import KEY

set_tracing_disabled(True)


def test_an_agent_calls_a_tool_and_answers(server):
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the current weather of a city.

        Args:
            city: The city.
        """
        asked.append(city)
        return '{"city": "Madrid", "temperature": 12, "sky": "windy"}'

    async def run():
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)
        agent = Agent(
            name="weather",
            model=OpenAIChatCompletionsModel(model=server.model, openai_client=client),
            model_settings=ModelSettings(temperature=0),
            tools=[get_weather],
        )
        whole = await Runner.run(agent, "What is the weather in Madrid?", max_turns=4)
        streamed = Runner.run_streamed(agent, "What is the weather in Madrid?", max_turns=4)
        async for _ in streamed.stream_events():
            pass
        return whole.final_output, streamed.final_output

    whole, streamed = asyncio.run(run())
    assert asked == ["Madrid", "Madrid"]
    assert whole == streamed and "12 degrees" in whole
