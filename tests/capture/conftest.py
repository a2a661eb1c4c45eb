import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")


@pytest.fixture
def models(torch):
    import capture_models

    return capture_models
