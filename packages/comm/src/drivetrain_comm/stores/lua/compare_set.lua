local found = redis.call('HGET', data, key)
if (found or '') ~= ARGV[5] then
  return reply(found or ARGV[5])
end
redis.call('HSET', data, key, ARGV[6])
written(key)
return reply(ARGV[6])
