redis.call('HSET', data, key, (redis.call('HGET', data, key) or '') .. ARGV[5])
written(key)
return reply('')
