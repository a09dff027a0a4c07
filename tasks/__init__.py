"""The stages of `dvc.yaml`: one module each, plain functions, no Prefect."""
