from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp


def client_fn(context):
    return NumPyClient().to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, fixedclipping_mod])
