-- The sum is read back as text: a number of Lua's has 53 bits.
redis.call('HINCRBY', data, key, ARGV[5])
written(key)
return reply(redis.call('HGET', data, key))
