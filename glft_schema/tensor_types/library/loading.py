def function_of(scheme, dtype):
    return None
