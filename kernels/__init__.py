"""Operations on tensors: each has a PyTorch reference, and most a Triton kernel with a launcher that checks.

Where to begin, in the order of a layer; what these import lies beside them:

- attention: attention_backend.py chooses, paged_attention.py is plain PyTorch, triton_attention.py ours;
- in front of attention: qkv_decode.py joins it with attention for decode rows, qkv_store.py with the QKV
  projection for up to hundreds of rows, by hopper_heads.py where that fits, qk_norm_rope.py stands alone;
- projections with what stands around them: small_batch.py up to 32 rows, tiled_projection.py up to
  hundreds, by hopper_projection.py where that fits, large_projection.py up to thousands, cpu_linear.py on
  CPUs;
- sums over ranks: all_reduce.py;
- sampling: sample.py is the reference, device_sampler.py what captured steps use, shared_sample.py draws
  over ranks;
- around a captured step: begin_step.py, prepare.py, step_times.py.
"""
