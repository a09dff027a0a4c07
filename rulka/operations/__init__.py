"""Operations: agents by name, promotion, paired comparison, nightly evaluation, and `rulka doctor`."""
