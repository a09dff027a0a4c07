"""Experience storage: the blocks that collectors record, replay buffers and samplers."""
