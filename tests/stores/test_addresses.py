"""No error, description or log tells the password in the address of a store."""

from __future__ import annotations

import re
import traceback
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from windlass import Agent
from windlass.cli import main
from windlass.errors import ConfigError, StoreError
from windlass.records import SessionOpened
from windlass.stores import PostgresStore, open_store
from windlass.testing import ScriptedModel

PASSWORD = "S3cret"
ADDRESSES_WITH_PASSWORDS = [
    "postgres//bob:S3cret@db/x",
    "postgres:bob:S3cret@db/x",
    "postgres:/bob:S3cret@db/x",
    "bob:S3cret@db/x",
    "postgrse//bob:S3cret/x",
    "mysql://bob:S3cret@db/x",
    "mysql://bob:p@S3cret@db/x",
    "mysql://bob:p?S3cret@db/x",
    "mysql://db/x?password=S3cret",
    "mysql://db/x?%70assword=S3cret",
    "mysql://db/x?password=p@S3cret",
    "mysql://db/x?user=bob&password=S3cret&x=1",
    "mysql://bob:x%40S3cret%2f@db/x?password=S3cret",
    "host=db.example user=bob password=S3cret",
    "host=db password=S3cret@x",
    "host=db password='a S3cret'",
    "password = S3cret host=db.example",
    "dbname=x password=S3cret:with:colons",
    "sqlite:///logs.db?key=S3cret",
    "sqlite:///logs.db?%6bey=S3cret",
    "sqlite://logs.db?password=S3cret",
    "sqlite:logs.db?password=S3cret",
    "logs.db?password=S3cret",
    "postgresql://bob:S3cret/x@db/y",
    "postgresql://bob:p@S3cret@db/y",
    "postgresql://bob:S3cret",
    "postgresql://bob:S3cret%zz@db/y",
    "postgresql://bob:S3cret p@db/y",
    "postgresql://bob:S3cret%00@db/y",
    'postgresql://bob:"S3cret"%zz@db/y',
    "postgresql://db/y?S3cret",
    "postgresql://db/y?pasword=S3cret",
    "postgresql://bob:S3cret@db/y?what=ever",
]


@pytest.mark.parametrize("address", ADDRESSES_WITH_PASSWORDS)
def test_no_error_about_an_address_tells_a_password(address):
    with pytest.raises(ConfigError) as caught:
        open_store(address)
    told = "".join(traceback.format_exception(caught.value.with_traceback(None)))
    assert PASSWORD not in told
    done = CliRunner().invoke(main, ["sessions", "list", "--store", address])
    assert done.exit_code == 1
    assert PASSWORD not in done.output
    with pytest.raises(ConfigError) as caught:
        Agent(ScriptedModel(), store=address)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("address", [b"postgresql://bob:S3cret@db/x", urlsplit("postgresql://bob:S3cret@db/x")])
def test_an_address_of_the_wrong_type_is_not_quoted(address):
    with pytest.raises(ConfigError) as caught:
        open_store(address)
    assert PASSWORD not in str(caught.value)


def test_a_connection_string_gets_a_hint():
    with pytest.raises(ConfigError, match=re.escape("did you mean PostgresStore('…')?")):
        open_store("host=db.example user=bob password=S3cret")


@pytest.mark.parametrize("address", ["postgresql://bob:S3cret@db/x", "postgresql://u:p@h/d?password=S3cret"])
def test_what_describes_a_store_or_its_agent_does_not_tell_its_password(address):
    agent = Agent(ScriptedModel(), store=address)
    explanation = agent.explain()
    for text in (repr(agent), repr(agent.store), str(explanation), explanation.json(), repr(explanation)):
        assert PASSWORD not in text


async def test_a_role_that_does_not_exist_is_named_and_no_database_is_asked_for(postgres):
    address = postgres.url("postgres").replace("postgres@", "nobody-knows:S3cret@", 1)
    assert "nobody-knows" in address
    store = PostgresStore(address)
    with pytest.raises(StoreError, match=r"role.*nobody-knows.*check the user") as caught:
        await store.append("s", [SessionOpened()], 0)
    assert "create the database" not in str(caught.value)
    assert "S3cret" not in "".join(traceback.format_exception(caught.value))
    await store.close()
