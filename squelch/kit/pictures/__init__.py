"""Pictures as a vision-language policy is fed them: geometry, patches and positions. Pure; numpy alone.

Sampler, learner, scorer and warm-up all call these functions, so none can feed a picture otherwise than the others.
"""
