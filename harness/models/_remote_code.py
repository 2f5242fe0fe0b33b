"""The Python files that a wrapper checkpoint carries, as text.

``KimiK25ForConditionalGeneration`` asks for an image processor even when only text is run, and
releases without numba take it from the checkpoint. What is written here is a stand-in with the
methods that vLLM calls; it never looks at a pixel. The configuration class is for stacks whose
transformers does not know ``kimi_k25`` (speculators 0.3.0 asks ``AutoConfig``).

They are text because nothing outside the engine's interpreter may import transformers.
"""

from __future__ import annotations

from typing import Any

from harness.models._config import (
    CONFIG_CLASS,
    IMAGE_PROCESSOR_CLASS,
    IMAGE_PROCESSOR_FILE,
)
from harness.models._kimi import KimiShape

IMAGE_PROCESSOR_CODE = f'''"""Image processor of a made Kimi-K2.5: vLLM's methods, blank patches."""

from transformers.image_processing_utils import BaseImageProcessor, BatchFeature

PATCHES = 16  # of one medium: 4 x 4, merged 2 x 2


class {IMAGE_PROCESSOR_CLASS}(BaseImageProcessor):
    model_input_names = ["pixel_values", "grid_thws"]

    def __init__(self, media_proc_cfg=None, **kwargs):
        super().__init__(**kwargs)
        self.media_proc_cfg = media_proc_cfg or {{}}
        self.num_frames_per_chunk = self.media_proc_cfg.get("temporal_merge_kernel_size", 4)

    def media_tokens_calculator(self, media):
        return PATCHES // 4

    def split_video_chunks(self, video):
        return [video]

    def preprocess(self, medias, return_tensors=None, **kwargs):
        import torch

        count = len(medias)
        size = self.media_proc_cfg.get("patch_size", 14)
        return BatchFeature(
            data={{
                "pixel_values": torch.zeros(PATCHES * count, 3, size, size),
                "grid_thws": torch.tensor([[1, 4, 4]] * count),
            }}
        )
'''

CONFIG_CODE = f'''"""Configuration of a made Kimi-K2.5, for a transformers that has no kimi_k25."""

from transformers import DeepseekV3Config
from transformers.configuration_utils import PretrainedConfig


class {CONFIG_CLASS}(PretrainedConfig):
    model_type = "kimi_k25"

    def __init__(self, text_config=None, vision_config=None, **kwargs):
        if not isinstance(text_config, PretrainedConfig):
            text_config = DeepseekV3Config(**(text_config or {{}}))
        if not isinstance(vision_config, PretrainedConfig):
            vision_config = PretrainedConfig(**(vision_config or {{}}))
        self.text_config = text_config
        self.vision_config = vision_config
        super().__init__(**kwargs)
'''


def preprocessor_config(shape: KimiShape) -> dict[str, Any]:
    """Return ``preprocessor_config.json``, with the keys that vLLM's own processor reads."""
    module = IMAGE_PROCESSOR_FILE.removesuffix(".py")
    reference = f"{module}.{IMAGE_PROCESSOR_CLASS}"
    return {
        "auto_map": {"AutoImageProcessor": reference},
        "image_processor_type": IMAGE_PROCESSOR_CLASS,
        "media_proc_cfg": {
            "in_patch_limit": 64,
            "in_patch_limit_each_frame": 64,
            "in_patch_limit_video": None,
            "patch_limit_on_one_side": shape.vision.position_grid,
            "patch_size": shape.vision.patch_size,
            "merge_kernel_size": shape.vision.merge_kernel,
            "temporal_merge_kernel_size": 4,
            "fixed_output_tokens": None,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "sample_fps": 2.0,
            "max_num_frames_each_video": None,
            "timestamp_mode": "hh:mm:ss.fff",
        },
    }
