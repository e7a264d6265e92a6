"""The file that Triton's Python backend loads; copy it as it is to `<model>/1/` or into a backend's folder."""

from pageport.backends.triton_python.stub_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
