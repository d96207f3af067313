"""What a client can ask of brokers, one coroutine for each call, over any transport.

Charter: `tailrace.sync` and `tailrace.aio` list these as their methods and bring the transport.
Imports protocol and sansio; opens no socket.
"""
