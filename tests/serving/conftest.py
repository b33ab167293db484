"""Clients of a server on this machine speak plain HTTP."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_certificates(tmp_path_factory):
    """Each httpx client loads those of SSL_CERT_DIR when it is made; all of the machine's take
    longer than most requests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no_certificates")))
        yield
