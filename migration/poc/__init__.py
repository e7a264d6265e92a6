"""The main job: the model that people run today and Pageport, side by side behind one Triton server."""
