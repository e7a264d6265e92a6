"""Maps the folders at the top of the repository to the `pageport` namespace."""

from setuptools import find_packages, setup

ROOMS = ("core", "kernels", "backends", "migration", "cli")

setup(
    packages=[
        f"pageport.{name}"
        for room in ROOMS
        for name in (room, *(f"{room}.{sub}" for sub in find_packages(room)))
    ],
    package_dir={f"pageport.{room}": room for room in ROOMS},
    package_data={"": ["py.typed", "*.j2", "*.pbtxt", "*.json", "*.html", "*.css"]},
)
