"""Eight CPU devices, shape checks on every annotated function, and where the real data is."""

import os
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import pytest

# Before anything touches a device; a test holds that the eight are there.
jax.config.update("jax_num_cpu_devices", 8)

# Before bucketjax is imported: every annotation is checked at every call.
_hook = jaxtyping.install_import_hook("bucketjax", "beartype.beartype")

hypothesis.settings.register_profile(
    "bucketjax",
    deadline=None,  # the first example of a jitted function compiles
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("bucketjax")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if for_gpu and jax.default_backend() != "gpu":
        for item in for_gpu:
            item.add_marker(pytest.mark.skip(reason="no GPU: JAX sees CPU devices only"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real ink and real lengths."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BUCKETJAX_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there; name its folder in BUCKETJAX_DATA")
    return folder


@pytest.fixture
def unchecked():
    """Without the checks of annotations: what a user sees who passes something of another type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
