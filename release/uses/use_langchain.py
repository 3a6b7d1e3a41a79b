from langchain_core.language_models import FakeListChatModel

from windlass import Agent
from windlass.compat import langchain

for name in langchain.__all__:
    getattr(langchain, name)
model = langchain.LangChainModel(FakeListChatModel(responses=["Hello."]))
assert Agent(model).run_sync("Hi.").text == "Hello."
