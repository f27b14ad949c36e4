def step(function): return function  # until all encoders have moved
row_step = step
