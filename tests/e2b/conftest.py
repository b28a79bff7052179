import pytest

import harness


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all; tests tell their sandboxes apart by metadata."""
    server = harness.Server(tmp_path_factory.mktemp("server"))
    with pytest.MonkeyPatch.context() as environment:
        for key, value in server.variables.items():
            environment.setenv(key, value)
        try:
            yield server
        finally:
            server.stop()
