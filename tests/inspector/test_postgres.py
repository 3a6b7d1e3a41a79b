"""The inspector on a PostgreSQL store, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from windlass.stores import open_store
from windlass.testing import says

from . import shop


def test_a_store_in_postgresql_is_shown_and_followed_and_its_password_is_not(
    postgres: Any, started: Callable[..., Any], opened: Callable[..., Any]
):
    database = postgres.database()

    def run(session: str, *script: Any) -> None:
        async def go() -> None:
            store = open_store(database)
            try:
                await shop.desk(store, *script).run(f"Question of {session}", session=session)
            finally:
                await store.close()

        shop.in_thread(go)

    run("first", says("one", usage=shop.use(400, 10)))
    page = opened(started(f"{database}{'&' if '?' in database else '?'}application_name=secret")).page
    expect(page.locator(".tr[data-id]")).to_have_count(1)
    expect(page.locator("#store")).not_to_contain_text("secret")
    run("second", says("two", usage=shop.use(400, 10)))
    page.wait_for_selector('.tr[data-id="second"]')
    page.evaluate("location.hash = '#/turn/second'")
    page.wait_for_selector(".r-end")
    expect(page.locator(".turnhead")).to_contain_text("chain intact")
    page.evaluate("location.hash = '#/pipeline/hooks/session/second'")
    expect(page.locator(".rail")).to_contain_text("customer_profile")
