from flwr.clientapp import ClientApp

app = ClientApp()
