return reply(redis.call('HDEL', data, key))
