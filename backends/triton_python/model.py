"""The file that Triton's Python backend loads; copied as it is to `<model>/1/` or a backend's folder."""

from pageport.backends.triton_python.stub_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
