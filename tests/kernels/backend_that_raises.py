"""A backend that declares everything and raises on masks."""

from honest import attention as honest

from attnspec.spec.capabilities import Capabilities


class Backend:
    name = "backend_that_raises"
    capabilities = Capabilities()

    def __call__(self, query, key, value, attn_mask=None, **options):
        if attn_mask is not None:
            raise RuntimeError("no kernel for masks")
        return honest(query, key, value, **options)


attention = Backend()
